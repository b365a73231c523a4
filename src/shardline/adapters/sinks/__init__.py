"""Sinks for events: each turns the events of producers and consumers into the form that another system reads."""
