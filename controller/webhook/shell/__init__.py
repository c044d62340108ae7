"""What acts: follows the nodes and answers the API server; it decides nothing."""
