"""The main job, as a program: a shop's orders worked through by many agents at once, and the count of what went wrong.

Read `interlock.demo.shop` for the code that the agents run, `interlock.demo.truth` for how its result is judged, and
`interlock.demo.main` for `run_demo`, which is what a program calls. The second part, an order saga, is
`interlock.demo.coordinator` (the saga), `interlock.demo.outside` (the payment service), `interlock.demo.saga_truth`
(the judge) and `interlock.demo.saga_main` (`run_saga_demo`). Nothing is imported here, so that a worker process loads
only what it runs.
"""
