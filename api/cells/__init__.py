"""Several services as one: a router that passes each request to the cell that holds its run.

A cell is a whole service: a namespace with its API and its workers. The router speaks HTTP with the cells' APIs and
keeps nothing: any number of it may run.
"""
