"""TUN devices with segmentation offload: packets of a network namespace as bytes of a file descriptor.

With offload the kernel hands over TCP segments of many packets at once, and a Python forwarder keeps up with a gigabit.
"""

from __future__ import annotations

import fcntl
import os
import struct

from ddpexec.lab.netlab.network import TCP_HEADER_BYTES

HEADER_BYTES = 10
"""struct virtio_net_hdr: flags, gso_type (u8), hdr_len, gso_size, csum_start, csum_offset (u16)."""
MAX_PACKET_BYTES = HEADER_BYTES + 65536

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN_NO_PI_VNET_HDR = 0x0001 | 0x1000 | 0x4000
_OFFLOAD_CSUM_TSO4 = 0x01 | 0x02
"""Of Linux' `include/uapi/linux/if_tun.h`: requests, flags of a device, and what may be left to it."""
_ETHERNET_BYTES = 14
"""The header of an Ethernet frame: two addresses of 6 bytes and a type of 2."""
_IP_DESTINATION_LAST = HEADER_BYTES + 19
_GSO_SIZE = struct.Struct("=xxxxH")


def open_tun(name: str) -> int:
    """Make the TUN device `name` and return its descriptor, not blocking; the device goes when that is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI_VNET_HDR))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _OFFLOAD_CSUM_TSO4)
    return descriptor


def destination(packet: bytes) -> int:
    """Return the index of the host an IPv4 packet is for, -1 for any other packet."""
    if packet[HEADER_BYTES] >> 4 != 4:
        return -1
    return packet[_IP_DESTINATION_LAST] - 1


def size_on_wire(packet: bytes) -> int:
    """Return the bytes that a packet, or the packets a segment will be cut into, take on an Ethernet wire."""
    segment: int = _GSO_SIZE.unpack_from(packet)[0]
    body = len(packet) - HEADER_BYTES
    if segment == 0:
        return body + _ETHERNET_BYTES
    headers = TCP_HEADER_BYTES - _ETHERNET_BYTES
    pieces = -(-(body - headers) // segment)
    return body - headers + pieces * TCP_HEADER_BYTES
