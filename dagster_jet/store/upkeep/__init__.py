"""Maintenance of a store: changes of members, verification, repair, orphans."""
