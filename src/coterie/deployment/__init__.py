"""Real participants through Flower: the server's app, a participant's app and what stands behind it, keys, and the processes of both."""
