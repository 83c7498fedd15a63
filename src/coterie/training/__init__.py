"""How a network is trained: the one loop, objectives, optimisers and schedules, scores."""
