"""Looking at a plan or a run: as text, as a picture, checked before it runs, stopped at any operator."""
