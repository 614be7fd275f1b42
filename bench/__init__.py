"""Benchmarks, the simulator, the fuzzer, the nemesis and the demo."""
