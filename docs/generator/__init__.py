"""Documentation site generator: navigation, reference pages and links.

mkdocs loads `hook`. The other modules turn text into text and do not need mkdocs.
"""
