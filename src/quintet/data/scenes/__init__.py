"""The embedded corpus: what is in a scene, how it is drawn, how it is put into words."""
