"""Pages of HTML: templates, and the code that fills them. Only a session that writes a page imports jinja2."""
