-- The interface of a function's script: the table `taut`, and the methods of packets. It uses only functions that are
-- safe with any arguments, so nothing in this file has to be hidden from scripts.

local memory, packets, counter, host = ...
local mark, send = memory.mark, memory.send
local type, error, tostring, format = type, error, tostring, string.format
local batch, fill, sends = packets.batch, packets.fill, host.sends

-- Number of ports of the chain; 0 before the first batch.
local ports = 0

local methods = packets.methods

-- The numbers of the marks are those in function.rs.
function methods.drop(self)
    mark(self[1], 1)
end

function methods.punt(self)
    mark(self[1], 2)
end

function methods.send_to(self, port)
    if not sends then
        error("send_to: the chain file has to say so: sends = true", 0)
    end
    if type(port) ~= "number" or not (port >= 0 and port < ports and port % 1 == 0) then
        error(format("send_to: expected a port of the chain, 0 to %d, got %s", ports - 1, tostring(port)), 0)
    end
    send(self[1], port)
end

_G.taut = {
    settings = host.settings, worker = host.worker, workers = host.workers, counter = counter,
    ip4 = packets.ip4, ip4_text = packets.ip4_text, mac = packets.mac, mac_text = packets.mac_text,
}
_G.print = host.print

-- Calls `process` with a batch of the first `n` packets.
return function(process, n, from_port, to_port, of, seconds)
    ports = of
    fill(n)
    batch.from_port, batch.to_port, batch.ports, batch.seconds = from_port, to_port, of, seconds
    process(batch)
end
