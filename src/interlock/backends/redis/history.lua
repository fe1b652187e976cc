-- The kept versions of a key, newest first. ARGV 1 key 2 limit
-- answer: {0, meta, {entry, at or '', record or '' ...}} | {3, ''}
local call, sub, byte, pack, from, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, KEYS[1]
--@ past.lua
local k = ARGV[1]
local r = call('HMGET', D, 'm', k)
if not r[1] then return {3, ''} end
local p, entries, out = pack('>I4', #k) .. k, {}, {}
if r[2] then entries[1] = r[2] end
local old = call('ZREVRANGEBYLEX', KEYS[3], '(' .. p .. '\255', '[' .. p, 'LIMIT', 0, ARGV[2])
for j = 1, #old do entries[#entries + 1] = sub(old[j], #p + 1) end
for j = 1, math.min(#entries, tonumber(ARGV[2])) do
  local id = string.format('%.0f', (from('>I8', entries[j])))
  local found = call('XRANGE', KEYS[4], id, id .. '-0')[1]
  out[#out + 1] = whole(k, entries[j])
  out[#out + 1] = found and found[2][2] or ''
  out[#out + 1] = found and found[2][4] or ''
end
return {0, r[1], out}
