"""Batch processing: runs the requests of an input file and appends the responses to an output file.

    input_file -> job -> runner or ray_cluster -> output_file

`input_file` parses the lines into requests. `job` identifies each response by its model, options and request, so that
an interrupted job resumes where it stopped. `runner` evaluates the requests with one model on this machine,
`ray_cluster` with several models on a Ray cluster. This package depends neither on HTTP nor on a terminal.
"""
