"""How close a gather comes to the speed of the receiver's own link."""
