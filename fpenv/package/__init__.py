"""Reading a task package as others publish it: one record, whatever the layout it came in."""
