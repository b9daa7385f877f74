"""A stack on this machine: one scheduler and one executor, as processes of their own.

identity.py   which process is meant, whatever became of its number
services.py   the command line of each service
start.py      start, wait until healthy, say what is going on
stop.py       terminate, wait, kill
logs.py       what a service's log has to say
bound.py      a launcher that ends a service with its parent
home.py       what `metronome up` leaves for `metronome down`
"""
