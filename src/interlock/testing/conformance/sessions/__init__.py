"""What a program sees of a store on this backend: isolation, sessions, retries, idempotency, outcomes, the feed.

The port's tests say that a backend does its part; these say that the whole does. Every body is one async function over
the public names of `interlock`. In the world ``awaited`` it runs as it is; in the world ``stepped`` the same body
drives `interlock.sync`, whose objects are dressed so that they can be awaited (`desk`).
"""
