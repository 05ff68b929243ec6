"""The pages, one file each, over `frame.py` (what every page has) and `parts.py` (tables, notes, dialogs).

Text that comes from a cluster is only ever given to elements that show text: NiceGUI and Vue escape it. Nothing here
makes HTML of data. Decorators of NiceGUI are called as functions, since their types are not known to mypy.
"""
