"""Pretrained image towers and text encoders behind one interface each. Importing one module needs no other."""
