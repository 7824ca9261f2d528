"""Asks the operating system to run the thread pool on performance cores, at full speed.

macOS and Windows move threads that they take for background work to efficiency cores. All other threads would wait for
the slowest one. Linux has no equivalent.
"""

import ctypes
import sys

QOS_CLASS_USER_INTERACTIVE = 0x21  # pthread/qos.h

THREAD_POWER_THROTTLING = 3  # in THREAD_INFORMATION_CLASS of processthreadsapi.h
CURRENT_VERSION, EXECUTION_SPEED = 1, 1  # of THREAD_POWER_THROTTLING_STATE


class ThreadPowerThrottlingState(ctypes.Structure):
    """THREAD_POWER_THROTTLING_STATE: `state` has the bits of `control` that are switched on."""

    _fields_ = (("version", ctypes.c_uint32), ("control", ctypes.c_uint32), ("state", ctypes.c_uint32))


def prefer_performance_cores() -> bool:
    """Request performance cores for the calling thread. Return whether the system has accepted this."""
    try:
        if sys.platform == "darwin":
            return set_quality_of_service(ctypes.CDLL(None))
        if sys.platform == "win32":
            return opt_out_of_throttling(ctypes.WinDLL("kernel32"))
    except (OSError, AttributeError):  # a system without these functions
        pass
    return False


def set_quality_of_service(system: ctypes.CDLL) -> bool:
    """Set the quality-of-service class of the calling thread on macOS to that of a user who waits for the result."""
    set_class = system.pthread_set_qos_class_self_np
    set_class.argtypes, set_class.restype = (ctypes.c_uint, ctypes.c_int), ctypes.c_int
    return bool(set_class(QOS_CLASS_USER_INTERACTIVE, 0) == 0)


def opt_out_of_throttling(kernel32: ctypes.CDLL) -> bool:
    """Opt the calling thread out of power throttling on Windows 10 and later."""
    current_thread, set_information = kernel32.GetCurrentThread, kernel32.SetThreadInformation
    current_thread.restype = ctypes.c_void_p
    set_information.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)
    set_information.restype = ctypes.c_int
    state = ThreadPowerThrottlingState(CURRENT_VERSION, EXECUTION_SPEED, 0)
    done = set_information(current_thread(), THREAD_POWER_THROTTLING, ctypes.byref(state), ctypes.sizeof(state))
    return bool(done)
