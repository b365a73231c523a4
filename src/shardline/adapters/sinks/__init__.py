"""Sinks for events: each turns the events of producers and consumers into a form that another system reads."""
