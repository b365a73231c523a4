"""The service as a pure model: ``Service.handle(operation, request, now) -> Answer``, reproducible from one seed."""
