"""What a kept run is: its directory, its configuration, and how it begins, goes on and ends."""
