"""Who sent a request, and what it needs: declarations of the rows, and the decision before the handler."""
