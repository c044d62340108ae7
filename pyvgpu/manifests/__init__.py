"""What is installed in a cluster: the chart of `deploy/chart`, rendered as helm does.

The chart's templates are the only source of it. They keep to the part of Go's templates that
:mod:`.template` and :mod:`.functions` have, which a test compares with helm's own.
"""
