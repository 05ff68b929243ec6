"""The blocking faces of the asyncio clients, and the short ways beneath them."""
