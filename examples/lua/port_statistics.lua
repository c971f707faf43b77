-- Sends from the first port to the last, and prints what each port counted, losses by cause included, as MoonGen's
-- device-statistics does. `ethtool -S` shows what a network card counts besides.
--
--   taut script examples/lua/port_statistics.lua --port SPEC --port SPEC -- [RATE] [SIZE] [SECONDS]

local rate, size, seconds = taut.args[1] or "1M", taut.args[2] or "64", tonumber(taut.args[3] or "10")
local result = taut.run { stream = taut.stream { size = size }, rate = rate, seconds = seconds }

print(string.format("sent %d, received %d, refused %d", result.sent, result.received, result.refused))
for _, port in ipairs(result.ports) do
    local names = {}
    for name in pairs(port) do
        names[#names + 1] = name
    end
    table.sort(names)
    print("port " .. port.index .. ", " .. taut.port(port.index).spec)
    for _, name in ipairs(names) do
        if name ~= "index" then
            print(string.format("    %-14s %d", name, port[name]))
            taut.counter(name .. " of port " .. port.index):add(port[name])
        end
    end
end
