"""What is changed in a pod when it is created. Pure functions; a server calls them."""
