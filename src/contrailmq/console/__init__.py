"""The web console: sees into a cluster and steers it, from a browser.

`model/` asks the cluster and knows no browser: it caches, samples, pages, searches and acts, over requests that
Apache's brokers answer too. `pages/` shows that with NiceGUI, one file a page. Between them and the network stand
`guard.py` (who may ask at all) and `passwords.py`; `server.py` puts everything together. Only the command line imports
this room.
"""
