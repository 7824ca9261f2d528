"""Many requests from a file: answered as a server would, into a file that outlives whatever ends the job.

    reading -> job -> answering or cluster -> output
    (what is asked) (what is left, in which order)

`reading` makes requests of lines; `job` ties their answers to model and options, so that a job which was ended goes on
where it was; `answering` has one model answer them, and `cluster` many, on a Ray cluster. Knows neither HTTP nor a
screen.
"""
