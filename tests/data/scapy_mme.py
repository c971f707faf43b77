#!/usr/bin/env python3
"""An MME made of scapy, for tests/parallel/gtpc.rs. It prints its port, and then obeys a command a line:

gateway PORT | attach | move TEID | idle | paged | detach. It prints a line of JSON for each: what the response says.
Every message that passes is kept, and `bytes` prints them all in hexadecimal digits.
"""

import json
import socket
import sys

from scapy.contrib.gtp_v2 import *

OWN, GATEWAY, ENB = "127.0.0.1", "127.0.0.2", "192.0.2.7"
mme = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mme.bind((OWN, 0))
mme.settimeout(20)
print(json.dumps({"port": mme.getsockname()[1]}), flush=True)

state = {"seq": 0, "gateway": None, "teid": 0}
passed = []


def ie(kind, **fields):
    """An element with its length, which scapy 2.5 and 2.6 count with two bytes of the header."""
    return kind(length=len(bytes(kind(**fields))) - 4, **fields)


def header(**fields):
    return GTPHeader(P=0, **fields)


def elements(message):
    return {(it.ietype, it.instance): it for it in message.IE_list}


def send(message):
    data = bytearray(bytes(message))
    # scapy leaves out four bytes too many.
    data[2:4] = (len(data) - 4).to_bytes(2, "big")
    passed.append(data.hex())
    mme.sendto(data, (GATEWAY, state["gateway"]))


def receive(kind):
    while True:
        data = mme.recv(4096)
        passed.append(data.hex())
        message = GTPHeader(data)
        if message.gtp_type == 1:
            send(header(gtp_type=2, T=0, seq=message.seq) / GTPV2EchoResponse(IE_list=[ie(IE_RecoveryRestart, restart_counter=5)]))
            continue
        assert message.gtp_type == kind, (message.gtp_type, kind)
        return message


def ask(kind, body, teid):
    state["seq"] += 1
    send(header(gtp_type=kind, teid=teid, seq=state["seq"]) / body)
    message = receive(kind + 1)
    assert message.seq == state["seq"], message.seq
    return elements(message)


def attach():
    bearer = ie(IE_BearerContext, IE_list=[ie(IE_EPSBearerID, EBI=5), ie(IE_Bearer_QoS, QCI=9, PriorityLevel=1)])
    found = ask(32, GTPV2CreateSessionRequest(IE_list=[
        ie(IE_IMSI, IMSI="001010000000001"), ie(IE_MSISDN), ie(IE_MEI), ie(IE_ServingNetwork, MCC="001", MNC="01"),
        ie(IE_RAT, RAT_type=6),
        ie(IE_FTEID, ipv4_present=1, InterfaceType=10, GRE_Key=0x77, ipv4=OWN),
        ie(IE_FTEID, instance=1, ipv4_present=1, InterfaceType=7, GRE_Key=0, ipv4=GATEWAY),
        ie(IE_APN, APN=b"internet"), ie(IE_SelectionMode), ie(IE_PDN_type, PDN_type=1), ie(IE_PAA, PDN_type=1, ipv4="0.0.0.0"),
        ie(IE_APN_Restriction), ie(IE_AMBR, AMBR_Uplink=50000, AMBR_Downlink=50000), bearer,
        ie(IE_RecoveryRestart, restart_counter=5)]), 0)
    bearer = elements(found[93, 0])
    state["teid"] = found[87, 0].GRE_Key
    return {"cause": found[2, 0].Cause, "teid": bearer[87, 0].GRE_Key, "address": bearer[87, 0].ipv4,
            "user": found[79, 0].ipv4, "bearer": bearer[2, 0].Cause}


def move(teid):
    bearer = ie(IE_BearerContext, IE_list=[
        ie(IE_EPSBearerID, EBI=5), ie(IE_FTEID, ipv4_present=1, InterfaceType=0, GRE_Key=int(teid), ipv4=ENB)])
    found = ask(34, GTPV2ModifyBearerRequest(IE_list=[bearer]), state["teid"])
    return {"cause": found[2, 0].Cause}


def idle():
    found = ask(170, GTPV2ReleaseBearerRequest(IE_list=[]), state["teid"])
    return {"cause": found[2, 0].Cause}


def paged():
    notice = receive(176)
    found = elements(notice)
    send(header(gtp_type=177, teid=state["teid"], seq=notice.seq) / GTPV2DownlinkDataNotifAck(
        IE_list=[ie(IE_Cause, Cause=16)]))
    return {"teid": notice.teid, "bearer": found[73, 0].EBI}


def detach():
    found = ask(36, GTPV2DeleteSessionRequest(IE_list=[ie(IE_EPSBearerID, EBI=5), IE_Indication(length=2, OI=1)]), state["teid"])
    return {"cause": found[2, 0].Cause}


for line in sys.stdin:
    name, *arguments = line.split()
    if name == "gateway":
        state["gateway"] = int(arguments[0])
        answer = {}
    elif name == "bytes":
        answer = {"messages": passed}
    else:
        answer = {"attach": attach, "move": move, "idle": idle, "paged": paged, "detach": detach}[name](*arguments)
    print(json.dumps(answer), flush=True)
