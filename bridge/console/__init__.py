"""The console: web pages on the HTTP port, which show and do what the commands do.

    console.py     the routes: pages, actions, files          site.py      what they answer
    pages/         what each page asks the API for            bodies/      bodies by a schema
    actions/       the table of all actions: forms and the requests of the API that they become
    commands.py    the same request as `duolog ...` and as curl
    rendering.py   the templates (`templates/`), with Jinja2, which the first page imports
    assets.py      the files of `static/`: style, script, htmx and uPlot

A page is HTML that the broker renders. It gets everything from the HTTP API, by calls in this process that have the
rights of the page's request. It works without a build step and loads nothing from other hosts.
"""
