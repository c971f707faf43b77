-- Tests which timestamps the receiving port has, and how fine they are, as MoonGen's test of timestamping capabilities
-- does: --port SPEC --port af_packet:eth1,stamps=kernel
--
--   taut script examples/lua/port_stamps.lua --port SPEC --port SPEC -- [PACKETS]

local packets = tonumber(taut.args[1] or "1000")
local received, stamped, ordered = taut.counter("received"), taut.counter("stamped"), taut.counter("in order")
local last, step

local function divisor(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end

taut.run {
    stream = taut.stream { size = 84 }, rate = 10000, seconds = packets / 10000,
    on_receive = function(batch)
        for _, packet in ipairs(batch) do
            received:add()
            local stamp = packet.port_stamp
            if stamp then
                stamped:add()
                if last then
                    step = divisor(step or 0, math.abs(stamp - last))
                    ordered:add(stamp >= last and 1 or 0)
                end
                last = stamp
            end
        end
    end,
}
local spec = taut.port(taut.ports()).spec
if stamped.value == 0 then
    print(spec .. ": no timestamps of its own (" .. received.value .. " packets); the generator's apply")
else
    print(string.format("%s: %d of %d packets stamped, unit of the stamps %d, %d of them in order", spec, stamped.value,
        received.value, step or 0, ordered.value + 1))
end
