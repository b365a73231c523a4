"""Values of the domain: standard library only, no behaviour beyond their own validity."""
