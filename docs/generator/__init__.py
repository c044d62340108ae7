"""Makes the site of the documentation: its navigation, its reference pages, its links.

`hook` is what mkdocs loads. All else is text from text, and needs no mkdocs.
"""
