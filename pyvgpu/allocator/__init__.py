"""Which device a container gets: the one allocator, for the node agent and for the scheduler.

Pure: facts go in, a placement or the reasons against it come out, and nothing is remembered.
"""
