"""placeholder"""
APPROVER = "approver@example.com"
class Scenario:
    def __init__(self, cloud): ...
