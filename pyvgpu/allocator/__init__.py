"""The device allocator shared by the node agent and the scheduler.

Pure and stateless: facts go in; a placement, or the reasons against it, comes out.
"""
