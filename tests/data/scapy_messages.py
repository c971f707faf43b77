#!/usr/bin/env python3
"""Writes scapy_messages.txt: GTP-U frames and PFCP messages, right and broken, as scapy makes them.

Made with scapy 2.6.1: python3 scapy_messages.py >scapy_messages.txt
A line each: name, a space, bytes in hexadecimal digits. What is to become of them: crates/gateway/src/scapy.rs
"""

from scapy.contrib.gtp import (
    GTP_PDCP_PDU_ExtensionHeader, GTP_U_Header, GTPEchoRequest, GTPEchoResponse, GTPErrorIndication, GTPHeader,
    GTPPDUSessionContainer, IE_GSNAddress, IE_Recovery, IE_TEIDI,
)
from scapy.contrib.pfcp import *
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw


def show(name, packet):
    print(name, bytes(packet).hex())


# ---- GTP-U: whole frames from a base station (192.0.2.7) to the gateway (192.0.2.1)

def frame(message):
    return Ether(src="02:00:00:00:00:07", dst="02:00:00:00:00:01") / IP(src="192.0.2.7", dst="192.0.2.1") \
        / UDP(sport=2152, dport=2152) / message


def user():
    return IP(src="10.45.0.2", dst="198.51.100.9") / UDP(sport=1000, dport=2000) / Raw(b"user packet")


def user6():
    return IPv6(src="2001:db8:45::2", dst="2001:db8:99::9") / UDP(sport=1000, dport=2000) / Raw(b"user packet")


def pdu(**fields):
    return GTP_U_Header(gtp_type=255, **{"teid": 0x10, **fields})


show("gtpu/plain", frame(pdu() / user()))
show("gtpu/plain-v6-user", frame(pdu() / user6()))
show("gtpu/sequence", frame(pdu(S=1, seq=0x1234) / user()))
show("gtpu/npdu", frame(pdu(PN=1, npdu=7) / user()))
session = lambda **fields: GTPPDUSessionContainer(type=1, QFI=9, **fields)
show("gtpu/session", frame(pdu(E=1, next_ex=0x85) / session() / user()))
show("gtpu/session-sequence", frame(pdu(E=1, S=1, seq=1, next_ex=0x85) / session() / user()))
show("gtpu/session-times", frame(pdu(E=1, next_ex=0x85) / session(QMP=1, SNP=1, UlQFISeqNum=5) / user()))
show("gtpu/pdcp-session", frame(
    pdu(E=1, next_ex=0xc0) / GTP_PDCP_PDU_ExtensionHeader(pdcp_pdu=3, next_ex=0x85) / session() / user()))
show("gtpu/unknown-extension-optional", frame(pdu(E=1, next_ex=0x21) / Raw(b"\x01\0\0\0") / user()))
show("gtpu/unknown-extension-required", frame(pdu(E=1, next_ex=0xe1) / Raw(b"\x01\0\0\0") / user()))
show("gtpu/unknown-teid", frame(pdu(teid=0x99) / user()))
show("gtpu/end-marker", frame(GTP_U_Header(gtp_type=254, teid=0x10)))
show("gtpu/echo-request", frame(GTPHeader(gtp_type=1, S=1, seq=7) / GTPEchoRequest()))
show("gtpu/echo-response", frame(
    GTPHeader(gtp_type=2, S=1, seq=7) / GTPEchoResponse(IE_list=[IE_Recovery(restart_counter=0)])))
show("gtpu/error-indication", frame(GTPHeader(gtp_type=26, S=1, seq=0) / GTPErrorIndication(
    IE_list=[IE_TEIDI(TEIDI=0x20), IE_GSNAddress(ipv4_address="192.0.2.7", length=4)])))
show("gtpu/extension-headers-notification", frame(GTPHeader(gtp_type=31, S=1) / Raw(b"\x8d\x01\x85")))
show("gtpu/no-such-message", frame(GTPHeader(gtp_type=99, teid=0x10)))
show("gtpu/version-2", frame(pdu(version=2) / user()))
show("gtpu/prime", frame(pdu(PT=0) / user()))
show("gtpu/header-cut", frame(Raw(bytes(pdu() / user())[:6])))
show("gtpu/options-cut", frame(Raw(bytes(pdu(S=1, seq=1))[:10])))
show("gtpu/length-lies", frame(pdu(length=500) / user()))
show("gtpu/extension-of-no-length", frame(pdu(E=1, next_ex=0x85) / Raw(b"\0\x10\x09\0") / user()))
show("gtpu/extension-longer-than-all", frame(pdu(E=1, next_ex=0x85) / Raw(b"\xff\x10\x09\0") / user()))

# ---- PFCP: messages of a session management function (192.0.2.100)

NODE = IE_NodeId(id_type=0, ipv4="192.0.2.100")
STAMP = IE_RecoveryTimeStamp(timestamp=0xE0000001)
CP_SEID = IE_FSEID(v4=1, seid=0x77, ipv4="192.0.2.100")


def node(sequence, message, **fields):
    return PFCP(S=0, seq=sequence, **fields) / message


def session_message(sequence, message, seid=0):
    return PFCP(S=1, seid=seid, seq=sequence) / message


def uplink(far=1, **ends):
    ends = ends or {"CH": 1, "V4": 1, "CHID": 1, "choose_id": 5}
    return IE_CreatePDR(IE_list=[
        IE_PDR_Id(id=1), IE_Precedence(precedence=255),
        IE_PDI(IE_list=[IE_SourceInterface(interface=0), IE_FTEID(**ends), IE_NetworkInstance(instance="internet"),
                        IE_UE_IP_Address(V4=1, ipv4="10.45.0.2")]),
        IE_OuterHeaderRemoval(header=0), IE_FAR_Id(id=far), IE_QER_Id(id=1)])


def downlink():
    return IE_CreatePDR(IE_list=[
        IE_PDR_Id(id=2), IE_Precedence(precedence=255),
        IE_PDI(IE_list=[IE_SourceInterface(interface=1), IE_UE_IP_Address(V4=1, SD=1, ipv4="10.45.0.2")]),
        IE_FAR_Id(id=2), IE_QER_Id(id=2)])


def tunnel(teid, remote):
    return IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=teid, ipv4=remote)


FARS = [
    IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(FORW=1),
                          IE_ForwardingParameters(IE_list=[IE_DestinationInterface(interface=1)])]),
    IE_CreateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1), IE_ForwardingParameters(
        IE_list=[IE_DestinationInterface(interface=0), tunnel(0x20, "192.0.2.7")])]),
]
QERS = [
    IE_CreateQER(IE_list=[IE_QER_Id(id=1), IE_GateStatus(ul=0, dl=0), IE_MBR(ul=1000, dl=1000)]),
    IE_CreateQER(IE_list=[IE_QER_Id(id=2), IE_GateStatus(ul=0, dl=0), IE_QFI(QFI=9)]),
]


def establishment(sequence, *rules, head=(NODE, CP_SEID)):
    elements = list(head) + list(rules) + [IE_PDNType(pdn_type=1)]
    return session_message(sequence, PFCPSessionEstablishmentRequest(IE_list=elements))


def modification(sequence, *elements):
    return session_message(sequence, PFCPSessionModificationRequest(IE_list=list(elements)))


show("pfcp/heartbeat", node(1, PFCPHeartbeatRequest(IE_list=[STAMP])))
show("pfcp/establishment-without-association", establishment(2, uplink(), downlink(), *FARS, *QERS))
show("pfcp/association-without-node", node(3, PFCPAssociationSetupRequest(IE_list=[STAMP])))
show("pfcp/association-without-stamp", node(4, PFCPAssociationSetupRequest(IE_list=[NODE])))
show("pfcp/association", node(5, PFCPAssociationSetupRequest(
    IE_list=[NODE, STAMP, IE_CPFunctionFeatures()])))
show("pfcp/establishment-without-node", establishment(6, uplink(), *FARS, *QERS, head=(CP_SEID,)))
show("pfcp/establishment-without-seid", establishment(7, uplink(), *FARS, *QERS, head=(NODE,)))
show("pfcp/establishment-without-pdr", establishment(8, *FARS, *QERS))
show("pfcp/establishment-without-far", establishment(9, uplink(), *QERS))
show("pfcp/establishment-pdr-without-pdi", establishment(10, IE_CreatePDR(
    IE_list=[IE_PDR_Id(id=1), IE_Precedence(precedence=1), IE_FAR_Id(id=1)]), *FARS, *QERS))
show("pfcp/establishment-far-without-action", establishment(
    11, uplink(), IE_CreateFAR(IE_list=[IE_FAR_Id(id=1)]), *QERS))
show("pfcp/establishment-of-unknown-far", establishment(12, uplink(far=9), *FARS, *QERS))
show("pfcp/establishment-teid-0", establishment(13, uplink(V4=1, TEID=0, ipv4="192.0.2.1"), *FARS, *QERS))
show("pfcp/establishment", establishment(14, uplink(), downlink(), *FARS, *QERS))
show("pfcp/move", modification(15, IE_UpdateFAR(IE_list=[
    IE_FAR_Id(id=2), IE_ApplyAction(FORW=1), IE_UpdateForwardingParameters(
        IE_list=[tunnel(0x30, "192.0.2.8"), IE_PFCPSMReqFlags(SNDEM=1)])])))
show("pfcp/close-gate", modification(16, IE_UpdateQER(IE_list=[IE_QER_Id(id=2), IE_GateStatus(ul=0, dl=1)])))
show("pfcp/update-unknown-far", modification(17, IE_UpdateFAR(IE_list=[IE_FAR_Id(id=9), IE_ApplyAction(FORW=1)])))
show("pfcp/remove-downlink", modification(
    18, IE_RemovePDR(IE_list=[IE_PDR_Id(id=2)]), IE_RemoveFAR(IE_list=[IE_FAR_Id(id=2)])))
show("pfcp/remove-unknown-pdr", modification(19, IE_RemovePDR(IE_list=[IE_PDR_Id(id=2)])))
show("pfcp/deletion", session_message(20, PFCPSessionDeletionRequest()))
show("pfcp/deletion-again", session_message(21, PFCPSessionDeletionRequest()))
show("pfcp/pfd-management", node(22, PFCPPFDManagementRequest()))
show("pfcp/release", node(23, PFCPAssociationReleaseRequest(IE_list=[NODE])))
show("pfcp/version-2", node(24, PFCPHeartbeatRequest(IE_list=[STAMP]), version=2))
show("pfcp/length-lies", node(25, PFCPHeartbeatRequest(IE_list=[STAMP]), length=400))
show("pfcp/header-cut", Raw(bytes(node(26, PFCPHeartbeatRequest(IE_list=[STAMP])))[:6]))
show("pfcp/element-cut", Raw(
    bytes(node(27, PFCPAssociationSetupRequest(IE_list=[NODE, STAMP])))[:-2]))
cut = bytearray(bytes(node(28, PFCPAssociationSetupRequest(IE_list=[NODE, STAMP]))))
cut[-6:-4] = b"\x00\x40"
show("pfcp/element-length-lies", Raw(bytes(cut)))

# ---- PFCP: sessions of 5G cores, with filters, usage, buffering and QoS flows


class CreateBAR(IE_Compound):
    """Not among scapy's own."""
    name = "IE Create BAR"
    ie_type = 85


def filtered(description, **fields):
    return IE_SDF_Filter(FD=1, flow_description=description, **fields)


def pdr_of(number, precedence, interface, *detects, far, urr=1, qer=1):
    return IE_CreatePDR(IE_list=[
        IE_PDR_Id(id=number), IE_Precedence(precedence=precedence),
        IE_PDI(IE_list=[IE_SourceInterface(interface=interface), *detects]),
        IE_FAR_Id(id=far), IE_URR_Id(id=urr), IE_QER_Id(id=qer)])


USER = IE_UE_IP_Address(V4=1, SD=1, ipv4="10.45.0.2")
UP = [IE_FTEID(CH=1, V4=1, CHID=1, choose_id=5), IE_NetworkInstance(instance="internet")]
SIP = filtered("permit out 17 from 198.51.100.7 5060-5070 to assigned", BID=1, sdf_filter_id=9)
FLOWS = [
    pdr_of(1, 255, 1, USER, far=1), pdr_of(2, 255, 0, *UP, far=2),
    pdr_of(3, 10, 1, USER, SIP, far=3, urr=2), pdr_of(4, 10, 0, *UP, IE_SDF_Filter(BID=1, sdf_filter_id=9), far=2, urr=2),
    IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(BUFF=1, NOCP=1), IE_BAR_Id(id=1)]),
    IE_CreateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1)]),
    IE_CreateFAR(IE_list=[IE_FAR_Id(id=3), IE_ApplyAction(FORW=1),
                          IE_ForwardingParameters(IE_list=[tunnel(0x30, "192.0.2.8")])]),
    IE_CreateURR(IE_list=[IE_URR_Id(id=1), IE_MeasurementMethod(VOLUM=1, DURAT=1),
                          IE_ReportingTriggers(volume_threshold=1, periodic_reporting=1), IE_MeasurementPeriod(period=10),
                          IE_VolumeThreshold(TOVOL=1, total=100)]),
    IE_CreateURR(IE_list=[IE_URR_Id(id=2), IE_MeasurementMethod(VOLUM=1), IE_ReportingTriggers(volume_quota=1),
                          IE_VolumeQuota(DLVOL=1, downlink=86)]),
    IE_CreateQER(IE_list=[IE_QER_Id(id=1), IE_GateStatus(ul=0, dl=0), IE_QFI(QFI=9)]),
    CreateBAR(IE_list=[IE_BAR_Id(id=1), IE_DownlinkDataNotificationDelay(delay=2),
                       IE_SuggestedBufferingPacketsCount(count=2)]),
]


def more(sequence, *elements):
    return modification(sequence, *elements)


show("upf/association", node(1, PFCPAssociationSetupRequest(IE_list=[NODE, STAMP])))
show("upf/establishment", establishment(2, *FLOWS))
show("upf/forward", more(3, IE_UpdateFAR(IE_list=[
    IE_FAR_Id(id=1), IE_ApplyAction(FORW=1), IE_UpdateForwardingParameters(IE_list=[tunnel(0x20, "192.0.2.7")])])))
show("upf/query", more(4, IE_QueryURR(IE_list=[IE_URR_Id(id=2)])))
show("upf/query-unknown", more(5, IE_QueryURR(IE_list=[IE_URR_Id(id=7)])))
show("upf/urr-without-method", more(6, IE_CreateURR(IE_list=[
    IE_URR_Id(id=3), IE_ReportingTriggers(periodic_reporting=1)])))
show("upf/filter-denies", more(7, pdr_of(5, 1, 1, USER, filtered("deny out ip from any to any"), far=3)))
show("upf/filter-cut", more(8, pdr_of(5, 1, 1, USER, IE_SDF_Filter(
    FD=1, flow_description_length=90, flow_description="permit out ip"), far=3)))
show("upf/filter-unnamed", more(9, pdr_of(5, 1, 1, USER, IE_SDF_Filter(BID=1, sdf_filter_id=1), far=3)))
show("upf/bar-without-id", more(10, CreateBAR(IE_list=[IE_DownlinkDataNotificationDelay(delay=2)])))
show("upf/remove-urr", more(11, IE_RemoveURR(IE_list=[IE_URR_Id(id=2)])))
show("upf/all-usage", more(12, IE_PFCPSMReqFlags(QUARR=1)))
show("upf/deletion", session_message(13, PFCPSessionDeletionRequest()))
