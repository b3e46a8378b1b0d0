"""`sdc report`: one self-contained page on a run, on an incident, or on both.

In: what a run left in its shared folder (manifests, spool), what the pipeline wrote down (incident table,
execution history). Out: one HTML file without script or anything outside it, and the same as JSON. Nothing is
asked of the training job, and nothing is changed.

run          a run's folder -> Run                 bounds    what the counts allow to be said (pure)
incidents    rows of the incident table -> Record  drawing   the run's and the incident's pictures (pure)
claims       what is said of both (pure)           page      both -> HTML
command      the order of it
"""
