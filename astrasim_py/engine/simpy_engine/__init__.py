"""The reference engine: every NPU a SimPy process, every link a SimPy resource."""
