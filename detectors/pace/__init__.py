"""How fast the job goes: changes of pace, thresholds on running steps, and hangs.

Read `detectors.pace.change_point` first.
"""
