"""What keeps a store whole: members that come and go, verification, repair, orphans."""
