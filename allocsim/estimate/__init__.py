"""What memory comes to by formula, where no program can be run or replayed."""
