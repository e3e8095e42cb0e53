"""What each stage and the whole pipeline promise, apart from what builds them: a new promise changes no work."""
