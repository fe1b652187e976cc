-- A page of a range. ARGV 1 identity or '' 2 snapshot or '' 3 start 4 stop 5 limit 6 'r' backwards
-- answer: {0, meta, snapshot, superseded, last key looked at or '' at the end, keys and entries} | {3, meta} | {4} | {8}
local call, sub, byte, pack, from, A, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, ARGV, KEYS[1]
--@ past.lua
local r = call('HMGET', D, 's', 'm')
local meta = r[2]
if not meta or (A[1] ~= '' and sub(meta, 1, 16) ~= A[1]) then return {3, meta or ''} end
local position = from('>I8', r[1])
local snapshot = tonumber(A[2]) or position
if snapshot > position then return {3, meta} end
if snapshot < from('>I8', meta, 17) then return {4} end
local limit, low, high, keys = tonumber(A[5]), '[' .. A[3], '(' .. A[4]
if A[6] == 'r' then keys = call('ZREVRANGEBYLEX', KEYS[2], high, low, 'LIMIT', 0, limit)
else keys = call('ZRANGEBYLEX', KEYS[2], low, high, 'LIMIT', 0, limit) end
local out, superseded, bytes = {}, 0, 0
if #keys > 0 then
  local found = call('HMGET', D, unpack(keys))
  for j = 1, #keys do
    local k, e = keys[j], found[j]
    if e and from('>I8', e) > snapshot then
      e = shown(k, e, snapshot)
      if e == nil then return {8} end
      superseded = 1
    end
    if e and byte(e, 17) % 2 == 0 then
      e = whole(k, e)
      out[#out + 1] = k
      out[#out + 1] = e
      bytes = bytes + #e
      if bytes > 4194304 then return {0, meta, snapshot, superseded, k, out} end
    end
  end
end
return {0, meta, snapshot, superseded, #keys == limit and keys[#keys] or '', out}
