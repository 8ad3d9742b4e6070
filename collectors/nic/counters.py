"""Which sysfs file of a network port is which metric of the catalogue."""

from __future__ import annotations

from typing import Final

# /sys/class/net/IF/statistics/ (kernel documentation, ABI/testing/sysfs-class-net-statistics)
ETHERNET: Final[dict[str, str]] = {
    "rx_bytes": "nic_receive_bytes",
    "tx_bytes": "nic_transmit_bytes",
    "rx_packets": "nic_receive_packets_count",
    "tx_packets": "nic_transmit_packets_count",
    "rx_errors": "nic_receive_errors_count",
    "tx_errors": "nic_transmit_errors_count",
    "rx_dropped": "nic_receive_dropped_count",
    "tx_dropped": "nic_transmit_dropped_count",
    "rx_fifo_errors": "nic_receive_fifo_errors_count",
    "rx_frame_errors": "nic_receive_frame_errors_count",
    "rx_crc_errors": "nic_receive_crc_errors_count",
    "rx_missed_errors": "nic_receive_missed_errors_count",
    "tx_carrier_errors": "nic_transmit_carrier_errors_count",
    "collisions": "nic_collisions_count",
}

# /sys/class/net/IF/ itself (as above, ABI/testing/sysfs-class-net)
ETHERNET_LINK: Final[dict[str, str]] = {
    "carrier_changes": "nic_carrier_changes_count",
    "carrier_down_count": "nic_carrier_down_count",
}

# /sys/class/infiniband/DEV/ports/N/counters/ (kernel documentation, ABI/stable/sysfs-class-infiniband)
RDMA: Final[dict[str, str]] = {
    "port_xmit_packets": "nic_rdma_transmit_packets_count",
    "port_rcv_packets": "nic_rdma_receive_packets_count",
    "link_downed": "nic_rdma_link_downed_count",
    "link_error_recovery": "nic_rdma_link_error_recovery_count",
    "symbol_error": "nic_rdma_symbol_errors_count",
    "local_link_integrity_errors": "nic_rdma_local_link_integrity_errors_count",
    "excessive_buffer_overrun_errors": "nic_rdma_excessive_buffer_overrun_errors_count",
    "port_rcv_errors": "nic_rdma_receive_errors_count",
    "port_rcv_remote_physical_errors": "nic_rdma_receive_remote_physical_errors_count",
    "port_rcv_switch_relay_errors": "nic_rdma_receive_switch_relay_errors_count",
    "port_rcv_constraint_errors": "nic_rdma_receive_constraint_errors_count",
    "port_xmit_constraint_errors": "nic_rdma_transmit_constraint_errors_count",
    "port_xmit_discards": "nic_rdma_transmit_discards_count",
    "port_xmit_wait": "nic_rdma_transmit_wait_count",
    "VL15_dropped": "nic_rdma_vl15_dropped_count",
}

# These count in words of four bytes.
RDMA_WORDS: Final[dict[str, str]] = {
    "port_xmit_data": "nic_rdma_transmit_bytes",
    "port_rcv_data": "nic_rdma_receive_bytes",
}
WORD_BYTES: Final = 4

# .../ports/N/hw_counters/ (mlx5 and others; the meaning is the vendor's)
RDMA_HARDWARE: Final[dict[str, str]] = {
    "local_ack_timeout_err": "nic_rdma_local_ack_timeouts_count",
    "rnr_nak_retry_err": "nic_rdma_rnr_nak_retries_count",
    "packet_seq_err": "nic_rdma_packet_sequence_errors_count",
    "out_of_sequence": "nic_rdma_out_of_sequence_count",
    "out_of_buffer": "nic_rdma_out_of_buffer_count",
    "implied_nak_seq_err": "nic_rdma_implied_nak_sequence_errors_count",
    "duplicate_request": "nic_rdma_duplicate_requests_count",
    "req_cqe_error": "nic_rdma_requester_cqe_errors_count",
    "resp_cqe_error": "nic_rdma_responder_cqe_errors_count",
    "req_cqe_flush_error": "nic_rdma_requester_cqe_flush_errors_count",
    "roce_slow_restart": "nic_rdma_roce_slow_restarts_count",
    "roce_adp_retrans": "nic_rdma_roce_adaptive_retransmits_count",
    "roce_adp_retrans_to": "nic_rdma_roce_adaptive_retransmit_timeouts_count",
    "np_cnp_sent": "nic_rdma_cnp_sent_count",
    "rp_cnp_handled": "nic_rdma_cnp_handled_count",
    "rp_cnp_ignored": "nic_rdma_cnp_ignored_count",
    "np_ecn_marked_roce_packets": "nic_rdma_ecn_marked_count",
    "rx_icrc_encapsulated": "nic_rdma_icrc_errors_count",
}

# .../ports/N/hw_counters/ of an Elastic Fabric Adapter (EFA_DEFINE_PORT_STATS in the kernel's efa_verbs.c, and AWS'
# "Monitor an Elastic Fabric Adapter"). It has no counters/; its bytes are bytes; what is retransmitted and who does not
# answer is counted from Nitro v4 on.
EFA: Final[dict[str, str]] = {
    "tx_bytes": "nic_rdma_transmit_bytes",
    "rx_bytes": "nic_rdma_receive_bytes",
    "tx_pkts": "nic_rdma_transmit_packets_count",
    "rx_pkts": "nic_rdma_receive_packets_count",
    "rx_drops": "nic_rdma_receive_dropped_count",
    "rdma_read_bytes": "nic_rdma_read_bytes",
    "rdma_read_resp_bytes": "nic_rdma_read_response_bytes",
    "rdma_read_wr_err": "nic_rdma_read_errors_count",
    "rdma_write_bytes": "nic_rdma_write_bytes",
    "rdma_write_recv_bytes": "nic_rdma_write_receive_bytes",
    "rdma_write_wr_err": "nic_rdma_write_errors_count",
    "retrans_bytes": "nic_rdma_retransmitted_bytes",
    "retrans_pkts": "nic_rdma_retransmitted_packets_count",
    "retrans_timeout_events": "nic_rdma_retransmit_timeouts_count",
    "unresponsive_remote_events": "nic_rdma_unresponsive_remotes_count",
    "impaired_remote_conn_events": "nic_rdma_impaired_connections_count",
}

# Its hw_counters/ of the device, which older kernels show among those of the port (EFA_DEFINE_DEVICE_STATS).
EFA_DEVICE: Final[dict[str, str]] = {
    "no_completion_cmds": "nic_rdma_uncompleted_commands_count",
    "cmds_err": "nic_rdma_command_errors_count",
}
