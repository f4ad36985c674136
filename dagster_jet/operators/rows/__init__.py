"""Keys, sorting and addresses of Arrow rows."""
