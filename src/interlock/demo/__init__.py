"""The main job, as a program: a shop's orders worked through by many agents at once, and the count of what went wrong.

Read `interlock.demo.shop` for the code that the agents run, `interlock.demo.truth` for how its result is judged, and
`interlock.demo.main` for `run_demo`, which is what a program calls. Nothing is imported here, so that a worker process
loads only what it runs.
"""
