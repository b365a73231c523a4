"""The service as a pure model: ``Service.handle(request, now) -> answer``, with its own clock and one seed."""
