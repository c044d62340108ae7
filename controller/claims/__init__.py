"""Claims for pods that ask by plain limits: their templates, which are made and collected here."""
