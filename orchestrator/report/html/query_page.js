// the page of a query needs no script of its own
